"""The processes that measure: how their parent starts them, asks them, and goes on when one of them dies."""
