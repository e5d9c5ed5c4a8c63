"""A local web app over the same calls as the command line: see, click, correct, retrain.

    browser ─► server (address, tokens) ─► api_* (one room per page) ─► jobs ─► worker process
                                             │
                                             └► tiles, maps, explain: pixels and the why of a call

Pages are plain HTML, CSS and JavaScript in `static/`; nothing is fetched from elsewhere.
"""
