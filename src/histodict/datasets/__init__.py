"""Lists of images: manifests, folders, tables and annotated images."""
