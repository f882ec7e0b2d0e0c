"""Values and columns: errors, types that rows may have, and conversions between Python, numpy and Arrow."""
