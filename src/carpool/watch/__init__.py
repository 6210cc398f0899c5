"""The last 30 days as series, the signals read from them, alerts, and the pages that show them."""
