"""The processes of a dataflow: sites with their poolers, the ingress, the egress."""
