"""The controller's process: membership, failure detection, views."""
