package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/kubeapi"
	"hairpin/watch"
)

// EgressIP reads an EgressIP from the API.
func EgressIP(ctx context.Context, client *kubeapi.Client, name string) (*v1.EgressIP, error) {
	e := &v1.EgressIP{}
	if err := read(ctx, client, watch.EgressIPPath()+"/"+name, e); err != nil {
		return nil, fmt.Errorf("EgressIP/%s: %w", name, err)
	}
	return e, nil
}

// EgressService reads an EgressService from the API.
func EgressService(ctx context.Context, client *kubeapi.Client, namespace, name string) (*v1.EgressService, error) {
	e := &v1.EgressService{}
	if err := read(ctx, client, watch.EgressServicePath(namespace)+"/"+name, e); err != nil {
		return nil, fmt.Errorf("EgressService/%s/%s: %w", namespace, name, err)
	}
	return e, nil
}

// Pool reads a LoadBalancerPool from the API.
func Pool(ctx context.Context, client *kubeapi.Client, name string) (*v1alpha1.LoadBalancerPool, error) {
	p := &v1alpha1.LoadBalancerPool{}
	if err := read(ctx, client, watch.PoolPath()+"/"+name, p); err != nil {
		return nil, fmt.Errorf("LoadBalancerPool/%s: %w", name, err)
	}
	return p, nil
}

// Advertisement reads a BGPAdvertisement from the API.
func Advertisement(ctx context.Context, client *kubeapi.Client, name string) (*v1alpha1.BGPAdvertisement, error) {
	a := &v1alpha1.BGPAdvertisement{}
	if err := read(ctx, client, watch.AdvertisementPath()+"/"+name, a); err != nil {
		return nil, fmt.Errorf("BGPAdvertisement/%s: %w", name, err)
	}
	return a, nil
}

// EgressNode reads from the API which node has an address of an EgressIP, an EgressService, or a
// Service with an address of a LoadBalancerPool; empty if none has.
func EgressNode(ctx context.Context, client *kubeapi.Client, owner cluster.Owner, a netip.Addr) (string, error) {
	if owner.Kind == "Service" {
		return announcer(ctx, client, a)
	}
	if owner.Namespace != "" {
		e, err := EgressService(ctx, client, owner.Namespace, owner.Name)
		if err != nil {
			return "", err
		}
		return e.Status.Host, nil
	}
	e, err := EgressIP(ctx, client, owner.Name)
	if err != nil {
		return "", err
	}
	node := ""
	for _, i := range e.Status.Items {
		if x, err := netip.ParseAddr(i.EgressIP); err == nil && x == a {
			node = i.Node
		}
	}
	return node, nil
}

// announcer reads which node announces an address of a LoadBalancerPool.
func announcer(ctx context.Context, client *kubeapi.Client, a netip.Addr) (string, error) {
	list := &v1alpha1.LoadBalancerPoolList{}
	if err := read(ctx, client, watch.PoolPath(), list); err != nil {
		return "", fmt.Errorf("LoadBalancerPools: %w", err)
	}
	for i := range list.Items {
		for _, x := range list.Items[i].Status.Addresses {
			if b, err := netip.ParseAddr(x.Address); err == nil && a == b {
				return x.Node, nil
			}
		}
	}
	return "", nil
}

func read(ctx context.Context, client *kubeapi.Client, path string, into any) error {
	text, err := client.Core.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
