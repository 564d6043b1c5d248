"""A process that turns files of other programs into files that workers map. It may crash, hang or grow without harm to
other processes."""
