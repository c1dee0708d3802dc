"""`python -m tidegate`: the same as the `tidegate` command."""

from tidegate.pipelines.cli import main

if __name__ == "__main__":
    main()
