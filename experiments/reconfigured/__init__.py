"""Code is changed while much state is held: how long is there no output, and when does the new code run?"""
