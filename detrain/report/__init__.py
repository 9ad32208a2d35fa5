"""`detrain report`: one page that shows what a run did."""
