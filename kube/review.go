package kube

import (
	"context"
	"encoding/json"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/kubeapi"
)

// Reviewer reviews bearer tokens of the metrics' clients.
type Reviewer struct{ Client *kubeapi.Client }

// MayGet reports whether the API server accepts a token, and whether its user may get a
// non-resource path.
func (r Reviewer) MayGet(ctx context.Context, token, path string) (valid, allowed bool, err error) {
	authentication := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token},
	}
	if err := r.create(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &authentication); err != nil {
		return false, false, fmt.Errorf("review a token: %w", err)
	}
	if !authentication.Status.Authenticated {
		return false, false, nil
	}
	user := authentication.Status.User
	access := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		},
	}
	for k, v := range user.Extra {
		access.Spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	if err := r.create(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &access); err != nil {
		return true, false, fmt.Errorf("review the access of %s: %w", user.Username, err)
	}
	return true, access.Status.Allowed, nil
}

// create creates a review, and reads the result. Package kubeapi does not know these types. It uses
// the client of Leases, which has no rate limit, because any client of the metrics port can cause
// reviews: with the limit of the other clients, these would delay other work.
func (r Reviewer) create(ctx context.Context, path string, review any) error {
	body, err := json.Marshal(review)
	if err != nil {
		return err
	}
	answer, err := r.Client.Coordination.Post().AbsPath(path).SetHeader("Content-Type", "application/json").
		SetHeader("Accept", "application/json").Body(body).Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, review)
}
