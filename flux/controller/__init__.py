"""The controller's process: membership, detection of failures, views."""
