package selftest

import "time"

// RunWith exports run, which takes a connection to the API.
var RunWith = run

func init() { forceAfter = time.Second } // the nodes of tests have no kubelet
