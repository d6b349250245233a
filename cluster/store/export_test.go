package store

// EqualFrontends exports equalFrontends to the tests.
var EqualFrontends = equalFrontends
