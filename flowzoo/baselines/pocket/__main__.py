"""`python -m flowzoo.baselines.pocket`: make a pocket model."""

from flowzoo.baselines.pocket.make import main

if __name__ == "__main__":
    main()
