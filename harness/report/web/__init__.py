"""The page of a run: one HTML file that needs nothing else, neither other files nor a network.

`document` puts it together: the answer first (`first`), then every table and picture of the report (`markup`), then the
cases as data (`cases`, `details`, `sources`) for the scripts in `assets/`. Without JavaScript the page is whole, but
for filters and the details of a single case. `vendor/` holds published files of others, unchanged.
"""
