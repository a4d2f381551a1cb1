"""The documentation site's pages that are not files of docs/."""
