// Fetches the OpenAPI document, asks for an API key where the service wants one, and shows Swagger UI.
"use strict";

const form = document.getElementById("key");
const token = document.getElementById("token");
const problem = document.getElementById("problem");

async function open(key) {
  problem.textContent = "";
  let response;
  try {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    response = await fetch("openapi.json", { headers });
    if (response.ok) {
      show(await response.json(), key);
      return;
    }
  } catch (error) {
    problem.textContent = `The service cannot be reached: ${error.message}`;
  }
  form.hidden = false;
  token.select();
  if (!response) return;
  if (response.status === 401) {
    problem.textContent = key ? "This key is not one of the service's API keys." : "";
  } else {
    const seconds = response.headers.get("Retry-After");
    problem.textContent = `The service answered ${response.status}${seconds ? `; try again in ${seconds} s` : ""}.`;
  }
}

function show(spec, key) {
  form.hidden = true;
  const ui = SwaggerUIBundle({
    ...(key ? { spec } : { url: "openapi.json" }), // by its address it is shown with a link
    dom_id: "#swagger-ui",
    deepLinking: true,
    showExtensions: true,
    showCommonExtensions: true,
    presets: [SwaggerUIBundle.presets.apis],
    // "Try it out" sends the key with each request; "Authorize" shows it, and takes another.
    onComplete: () => key && ui.preauthorizeApiKey("key", key),
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  open(token.value.trim());
});
document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
open(null);
