package selftest

import "time"

// RunWith exports run, which takes a connection to the API.
var RunWith = run

func init() { forceAfter, startTime = time.Second, 5*time.Second } // the nodes of tests have no kubelet
