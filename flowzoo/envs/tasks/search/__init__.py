"""The task `search`: a generated world of facts with BM25, or files and a retriever over HTTP."""
