"""`python -m carpool`."""

from carpool.cli import app

if __name__ == "__main__":
    app(prog_name="carpool")
