"""Local web app for labelling images, training models and inspecting their predictions.

    browser ─► server (address, tokens) ─► api/ (handlers per page) ─► jobs ─► worker process
                                             │
                                             └► maps, patch_explanation: pixels and explanations

The app makes the same calls as the command line. Pages are plain HTML, CSS and JavaScript in
`static/`; nothing is fetched from other hosts.
"""
