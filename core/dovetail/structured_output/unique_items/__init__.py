"""`uniqueItems` while an answer is written: tokens that would repeat an item are not allowed."""
