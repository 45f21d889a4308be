"""The processes that measure: what they say to each other, and who watches over whom."""
