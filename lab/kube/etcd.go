package main

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

// store is a running single-member etcd.
type store struct {
	*embed.Etcd
	endpoint string // URL for clients
}

// startStore starts etcd with its data in dir, on free ports of 127.0.0.1, and waits until it
// serves.
func startStore(ctx context.Context, dir string) (store, error) {
	c := embed.NewConfig()
	c.Dir = dir
	c.LogLevel = "warn"
	c.UnsafeNoFsync = true           // a lab's cluster need not survive a power cut
	c.TickMs, c.ElectionMs = 10, 100 // a lone member only has to wait for itself to be elected: 0.1 s, not up to 1 s
	// Port 0 everywhere, so that two of them can share a network namespace. The advertised peer
	// address is part of the stored membership and must therefore not change; with one member
	// nobody ever dials it.
	free := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{free}, []url.URL{free}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{free}, []url.URL{free}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return store{}, err
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		e.Close()
		return store{}, err
	case <-ctx.Done():
		e.Close()
		return store{}, fmt.Errorf("waiting for its leader: %w", ctx.Err())
	}
	return store{Etcd: e, endpoint: "http://" + e.Clients[0].Addr().String()}, nil
}
