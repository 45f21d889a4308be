"""Matrix products of the library, with what is done beside them."""
