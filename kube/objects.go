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

// egressIP reads an EgressIP from the API.
func egressIP(ctx context.Context, client *kubeapi.Client, name string) (*v1.EgressIP, error) {
	return object[v1.EgressIP](ctx, client, "EgressIP/"+name, watch.EgressIPPath()+"/"+name)
}

// egressService reads an EgressService from the API.
func egressService(ctx context.Context, client *kubeapi.Client, namespace, name string) (*v1.EgressService, error) {
	return object[v1.EgressService](ctx, client, "EgressService/"+namespace+"/"+name,
		watch.EgressServicePath(namespace)+"/"+name)
}

// pool reads a LoadBalancerPool from the API.
func pool(ctx context.Context, client *kubeapi.Client, name string) (*v1alpha1.LoadBalancerPool, error) {
	return object[v1alpha1.LoadBalancerPool](ctx, client, "LoadBalancerPool/"+name, watch.PoolPath()+"/"+name)
}

// advertisement reads a BGPAdvertisement from the API.
func advertisement(ctx context.Context, client *kubeapi.Client, name string) (*v1alpha1.BGPAdvertisement, error) {
	return object[v1alpha1.BGPAdvertisement](ctx, client, "BGPAdvertisement/"+name, watch.AdvertisementPath()+"/"+name)
}

// EgressNode reads from the API which node has an address of an EgressIP, an EgressService, or a
// Service with an address of a LoadBalancerPool; empty if none has.
func EgressNode(ctx context.Context, client *kubeapi.Client, owner cluster.Owner, a netip.Addr) (string, error) {
	switch owner.Kind {
	case "Service":
		return announcer(ctx, client, a)
	case "EgressService":
		e, err := egressService(ctx, client, owner.Namespace, owner.Name)
		if err != nil {
			return "", err
		}
		return e.Status.Host, nil
	}
	e, err := egressIP(ctx, client, owner.Name)
	if err != nil {
		return "", err
	}
	for _, x := range e.Status.Items {
		if b, err := netip.ParseAddr(x.EgressIP); err == nil && a == b {
			return x.Node, nil
		}
	}
	return "", nil
}

// announcer reads which node announces an address of a LoadBalancerPool.
func announcer(ctx context.Context, client *kubeapi.Client, a netip.Addr) (string, error) {
	list, err := object[v1alpha1.LoadBalancerPoolList](ctx, client, "LoadBalancerPools", watch.PoolPath())
	if err != nil {
		return "", err
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

// object reads the object at a path of the API; errors name it as what.
func object[T any](ctx context.Context, client *kubeapi.Client, what, path string) (*T, error) {
	o := new(T)
	text, err := client.Core.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(text, o)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return o, nil
}
