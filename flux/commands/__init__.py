"""The commands of `flux`, one file for each group; `flux.commands.main` combines them into one parser."""
