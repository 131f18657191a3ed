"""Reports on models: summaries, pages, drawings, profiles as files, comparisons of devices."""
