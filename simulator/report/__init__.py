"""What a person sees of a simulation: tables, JSON, charts and a page.

``contents`` says what is shown; each other module is one way of showing it. All are pure but for
the files they write: the same simulations give the same bytes.
"""
