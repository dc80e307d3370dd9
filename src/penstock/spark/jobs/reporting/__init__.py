"""What a report is made of: measured by Spark, then drawn and written as one page."""
