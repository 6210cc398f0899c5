"""The page of a day or a week, for the team: when it was busy, who, how it was, what to do."""
