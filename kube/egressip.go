package kube

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	v1 "hairpin/api/v1"
	"hairpin/watch"
)

// EgressIP reads an EgressIP from the API.
func EgressIP(ctx context.Context, client kubernetes.Interface, name string) (*v1.EgressIP, error) {
	text, err := client.CoreV1().RESTClient().Get().AbsPath(watch.EgressIPPath()+"/"+name).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("EgressIP/%s: %w", name, err)
	}
	e := &v1.EgressIP{}
	if err := json.Unmarshal(text, e); err != nil {
		return nil, fmt.Errorf("EgressIP/%s: %w", name, err)
	}
	return e, nil
}

func EgressIPs(ctx context.Context, client kubernetes.Interface) (runtime.Object, error) {
	text, err := client.CoreV1().RESTClient().Get().AbsPath(watch.EgressIPPath()).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	list := &v1.EgressIPList{}
	if err := json.Unmarshal(text, list); err != nil {
		return nil, fmt.Errorf("read EgressIPs: %w", err)
	}
	return list, nil
}
