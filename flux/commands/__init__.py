"""The commands of `flux`, one file for those that belong together; `flux.commands.main` puts them into one parser."""
