package pods

// RunWith exports run, which takes a connection to the API.
var RunWith = run
