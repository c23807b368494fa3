"""Makes pytester available to the project's own tests."""

pytest_plugins = ["pytester"]
