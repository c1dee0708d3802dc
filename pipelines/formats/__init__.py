"""File formats, one a file. Each that events come in has two functions:

peek(path, file)                  → the columns, from the file's head
read(path, file, columns, group)  → record batches of the asked columns, and a dead letter for what cannot be parsed
"""
