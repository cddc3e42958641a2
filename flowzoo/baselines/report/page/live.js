// The page of a run that goes on: it is loaded again when the run has written more than it shows.
const { live } = JSON.parse(document.getElementById("facts").textContent);
const changes = new EventSource(`changes?${live}`);
changes.onmessage = (event) => { if (event.data === "changed") location.reload(); };
