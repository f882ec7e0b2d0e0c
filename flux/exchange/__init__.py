"""The exchange: how rows become lanes and lanes become rows."""
