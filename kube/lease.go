package kube

import "time"

// The controller's Lease.
const (
	LeaseNamespace = "kube-system"
	LeaseName      = "hairpin-controller"

	LeaseDuration = 15 * time.Second // after this time without a renewal, another process takes the Lease
	RenewDeadline = 10 * time.Second // after this time without a renewal, the holder stops working
	RenewPeriod   = 2 * time.Second
)
