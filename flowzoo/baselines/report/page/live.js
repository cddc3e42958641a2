// The page of a run that goes on: it is loaded again when the run has written more.
const changes = new EventSource("changes");
changes.onmessage = (event) => { if (event.data === "changed") location.reload(); };
