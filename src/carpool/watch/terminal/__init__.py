"""The picture of `carpool watch`: what the admin API tells, as lines of a terminal."""
