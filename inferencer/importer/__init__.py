"""A process that turns what others wrote into what workers map. It may end, hang or grow without hurting anybody."""
