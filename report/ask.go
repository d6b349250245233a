package report

// AsJSON asks for a State that a program reads. Without it the answer is text for people.
const AsJSON = "?output=json"
