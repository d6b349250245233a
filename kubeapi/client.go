// Package kubeapi is a client of the part of the Kubernetes API that Hairpin uses. The clientset of
// client-go has all groups, which would make the program half as large again, in an agent's memory
// as well.
package kubeapi

import (
	"errors"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Scheme knows the types of the groups that Client has. Parameters encodes options of requests,
// those of logs and exec included.
var (
	Scheme     = newScheme()
	Parameters = runtime.NewParameterCodec(Scheme)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme,
		networkingv1.AddToScheme, coordinationv1.AddToScheme} {
		utilruntime.Must(add(s)) // only two types with the same name could fail
	}
	return s
}

// Client has a REST client of the API server for each group.
type Client struct {
	Core, Discovery, Networking, Coordination rest.Interface
}

// New connects as configured. All groups share connections and, with a QPS, one limit. Requests for
// Leases, of which there are few, are exempt: a renewal must not wait behind other work.
func New(config *rest.Config) (*Client, error) {
	c := rest.CopyConfig(config)
	if c.UserAgent == "" {
		c.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if c.RateLimiter == nil && c.QPS > 0 {
		if c.Burst <= 0 {
			return nil, errors.New("a client with a QPS needs a burst")
		}
		c.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	}
	http, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(Scheme,
		serializer.NewCodecFactory(Scheme)).WithoutConversion()
	var client Client
	for _, g := range []struct {
		api   *rest.Interface
		group schema.GroupVersion
	}{
		{&client.Core, corev1.SchemeGroupVersion},
		{&client.Discovery, discoveryv1.SchemeGroupVersion},
		{&client.Networking, networkingv1.SchemeGroupVersion},
		{&client.Coordination, coordinationv1.SchemeGroupVersion},
	} {
		of := rest.CopyConfig(c)
		of.GroupVersion, of.APIPath = &g.group, "/apis"
		if g.group.Group == "" {
			of.APIPath = "/api"
		}
		if g.api == &client.Coordination {
			of.RateLimiter, of.QPS = nil, -1
		}
		if *g.api, err = rest.RESTClientForConfigAndClient(of, http); err != nil {
			return nil, err
		}
	}
	return &client, nil
}
