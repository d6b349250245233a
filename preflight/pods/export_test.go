package pods

// RunWith is Run with a connection to the API.
var RunWith = run
