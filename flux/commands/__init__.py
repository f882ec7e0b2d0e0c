"""The commands of `flux`, one file for those that belong together; `flux.cli` puts them into one parser."""
