package kube

import "time"

// The controller's Lease.
const (
	LeaseNamespace = "kube-system"
	LeaseName      = "hairpin-controller"

	LeaseDuration = 15 * time.Second // without a renewal for so long, another process takes the Lease
	RenewDeadline = 10 * time.Second // without a renewal for so long, the holder stops working
	RenewPeriod   = 2 * time.Second
)
