"""The directory where publisher and followers meet: names, commit, prune, recovery, the publisher's lock."""
