"""From a file to pixels: readers, tissue, stain and manifests."""
